// An adjudicator's page: digits choose the grade and focus the reason; arrows go to other answers.
"use strict";
(() => {
  document.documentElement.classList.add("scripted");
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    const reason = document.querySelector("[name=reason]");
    if (event.target === reason) {
      if (event.key === "Escape") reason.blur();
      return;
    }
    const digit = /^(?:Digit|Numpad)(\d)$/.exec(event.code)?.[1];
    const grades = [...document.querySelectorAll("input[data-key]")];
    const chosen = grades.find((input) => input.dataset.key === event.key) ?? grades.find((input) => !event.shiftKey && input.dataset.key === digit);
    if (chosen) {
      chosen.checked = true;
      reason.focus();
      reason.select();
    } else if (event.key === "ArrowRight") document.querySelector("#next")?.click();
    else if (event.key === "ArrowLeft") document.querySelector("#previous")?.click();
    else return;
    event.preventDefault();
  });
})();
