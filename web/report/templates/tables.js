"use strict";
// Make table headings sort by their column, and mark tables that are wider than the page. Tables are complete without it.
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
