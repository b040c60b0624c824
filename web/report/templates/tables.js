"use strict";
// Make table headings sort by their column, mark tables that are wider than the page, and move among the marks of a
// plot with the arrow keys. Tables and plots are complete without it.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  if (body.rows.length < 3) continue;
  const heads = [...table.tHead.rows[0].cells];
  const value = (row, at) => {
    const text = row.cells[at].textContent.trim();
    const number = parseFloat(text.replace(/,/g, "").replace("−", "-").replace(/^\+/, ""));
    return [number, text];
  };
  heads.forEach((head, at) => {
    const numeric = head.classList.contains("number");
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    button.title = "Sort by this column";
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      // Numbers begin with the highest, names with the first.
      const down = head.getAttribute("aria-sort") ? head.getAttribute("aria-sort") === "ascending" : numeric;
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...body.rows].map((row) => [value(row, at), row]);
      rows.sort(([one], [other]) => {
        if (numeric) {
          if (isNaN(one[0]) || isNaN(other[0])) return isNaN(one[0]) - isNaN(other[0]); // dashes last, either way
          return down ? other[0] - one[0] : one[0] - other[0];
        }
        const order = one[1].localeCompare(other[1], "en", { numeric: true });
        return down ? -order : order;
      });
      body.append(...rows.map(([, row]) => row));
    });
  });
}
const boxes = [...document.querySelectorAll(".scroll")];
const tell = () => {
  for (const box of boxes) {
    const wide = box.scrollWidth > box.clientWidth + 1;
    box.classList.toggle("wide", wide);
    if (box.previousElementSibling?.classList.contains("hint")) box.previousElementSibling.hidden = !wide;
  }
};
addEventListener("resize", tell);
tell();
for (const chart of document.querySelectorAll("svg")) {
  const marks = [...chart.querySelectorAll(".mark")];
  marks.forEach((mark, at) => {
    // One stop for Tab in each plot. The mark's own note replaces the browser's, which would come on top of it.
    mark.setAttribute("tabindex", at ? "-1" : "0");
    mark.setAttribute("aria-label", mark.querySelector("title").textContent);
    mark.querySelector("title").remove();
    mark.addEventListener("focus", () => {
      for (const other of marks) other.setAttribute("tabindex", other === mark ? "0" : "-1");
    });
  });
  chart.addEventListener("keydown", (event) => {
    const at = marks.indexOf(document.activeElement);
    const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
    if (event.key === "Escape") chart.classList.add("quiet");
    if (at < 0 || !(event.key in steps)) return;
    event.preventDefault();
    chart.classList.remove("quiet");
    marks[(at + steps[event.key] + marks.length) % marks.length].focus();
  });
  for (const kind of ["pointerleave", "focusout"]) chart.addEventListener(kind, () => chart.classList.remove("quiet"));
}
addEventListener("keydown", (event) => {
  if (event.key === "Escape") document.querySelector("svg:hover")?.classList.add("quiet");
});
for (const text of document.querySelectorAll("#paper pre")) {
  const details = text.closest("details");
  const name = details.querySelector("summary").textContent;
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = `Copy ${name}`;
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text.textContent);
      button.textContent = `Copied ${name}`;
    } catch { // where copying is not allowed, the text is at least selected
      details.open = true;
      getSelection().selectAllChildren(text);
      button.textContent = document.execCommand("copy") ? `Copied ${name}` : `${name} is selected: press Ctrl+C`;
    }
  });
  document.querySelector("#paper details").before(button);
}
