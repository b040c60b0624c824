"use strict";
// Selecting rows, copying commands, and moving between cells of the matrix. Without it all links and forms still work.

// -- selecting rows --------------------------------------------------------------------------------------------------

function picks() {
  return [...document.querySelectorAll("input[name=pick]")];
}

function countPicks() {
  const all = picks();
  const chosen = all.filter((pick) => pick.checked).length;
  const button = document.getElementById("use-picked");
  if (!button) return;
  button.disabled = chosen === 0;
  button.textContent = chosen ? `Use the ${chosen} selected` : "Use the selected";
  const every = document.getElementById("pick-all");
  every.closest("label").hidden = all.length === 0;
  every.checked = chosen > 0 && chosen === all.length;
  every.indeterminate = chosen > 0 && chosen < all.length;
}

document.addEventListener("change", (event) => {
  if (event.target.id === "pick-all") for (const pick of picks()) pick.checked = event.target.checked;
  if (event.target.matches("#pick-all, input[name=pick]")) countPicks();
});

document.addEventListener("keydown", (event) => {
  if (event.key !== "x" || event.ctrlKey || event.metaKey || event.altKey) return;
  const pick = document.activeElement?.closest?.(".row")?.querySelector("input[name=pick]");
  if (!pick || document.activeElement === pick) return;
  pick.checked = !pick.checked;
  countPicks();
});

// -- copying commands ------------------------------------------------------------------------------------------------

for (const box of document.querySelectorAll(".copy")) {
  const button = box.querySelector("button");
  button.hidden = !navigator.clipboard;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(box.querySelector("pre").textContent);
    button.textContent = "Copied";
  });
}

// -- the matrix: one cell at a time is in the tab order, arrow keys move ---------------------------------------------

function cellsOf(row) {
  const [item, , , ...scores] = row.cells;
  return [item, ...scores].map((cell) => cell.querySelector("a, [data-empty]"));
}

function makeGrid(table) {
  table.setAttribute("role", "grid");
  for (const empty of table.querySelectorAll(".cell.none > span")) empty.dataset.empty = "";
  const all = [...table.querySelectorAll("tbody .cell")].map((cell) => cell.firstElementChild);
  for (const one of [...all, ...table.querySelectorAll("tbody .first a")]) one.tabIndex = -1;
  if (all.length) all[0].tabIndex = 0;
}

function step(from, key, whole) {
  const row = from.closest("tr");
  const rows = [...row.parentElement.rows];
  const at = cellsOf(row).indexOf(from);
  const y = rows.indexOf(row);
  const last = cellsOf(row).length - 1;
  const to = {
    ArrowLeft: [y, at - 1],
    ArrowRight: [y, at + 1],
    ArrowUp: [y - 1, at],
    ArrowDown: [y + 1, at],
    Home: [whole ? 0 : y, 0],
    End: [whole ? rows.length - 1 : y, last],
  }[key];
  return to && rows[to[0]] ? cellsOf(rows[to[0]])[to[1]] : null;
}

const GRID = "table.matrix tbody .cell > *, table.matrix tbody .first > a";

document.addEventListener("keydown", (event) => {
  if (event.target.matches?.(".scroll") && event.key.startsWith("Arrow")) {
    event.stopImmediatePropagation(); // arrows scroll the region and lead to no other page
    return;
  }
  if (event.altKey || event.metaKey || document.querySelector("dialog[open]")) return;
  const key = event.ctrlKey ? event.key : { j: "ArrowDown", k: "ArrowUp" }[event.key] ?? event.key;
  if (!/^(Arrow|Home$|End$)/.test(key)) return;
  let from = event.target.closest?.(GRID);
  let to = from ? step(from, key, event.ctrlKey) : null;
  if (!from) { // from the rest of the page, a key that moves goes to the cell that was last left
    if (event.ctrlKey || key === "Home" || key === "End" || event.target.matches?.("input, select, textarea")) return;
    from = to = [...document.querySelectorAll(GRID)].find((cell) => cell.tabIndex === 0);
    if (!to) return;
  }
  event.preventDefault();
  event.stopImmediatePropagation(); // at the edge of the matrix no key leads to another page
  if (!to) return;
  from.tabIndex = -1;
  to.tabIndex = 0;
  to.focus({ preventScroll: true });
  to.scrollIntoView({ block: "nearest", inline: "nearest" });
}, true);

for (const table of document.querySelectorAll("table.matrix")) makeGrid(table);
countPicks();
window.addEventListener("pageshow", countPicks);
document.addEventListener("refreshed", countPicks);
