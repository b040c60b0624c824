"use strict";
// The matrix in an export: rows and columns of asset/matrices.js, sorted and paged in the browser.
const ROWS = 50;
const ACROSS = 24;
const DOWN = { item: false, mean: false, spread: true }; // true: the largest first
const query = new URLSearchParams(location.search);
const form = document.getElementById("filters");
const place = document.getElementById("grid");

function element(tag, name, text) {
  const made = document.createElement(tag);
  if (name) made.className = name;
  if (text !== undefined) made.textContent = text;
  return made;
}

function changed(changes) {
  const next = new URLSearchParams(query);
  next.delete("page");
  for (const [name, value] of Object.entries(changes)) {
    if (value === "" || value === 1) next.delete(name);
    else next.set(name, value);
  }
  return `?${next}`;
}

function figure(value, digits) {
  return value === null ? "–" : value.toFixed(digits);
}

function orderOf(matrix, sort, down) {
  if (sort === "item") return down ? [...matrix.byName].reverse() : matrix.byName;
  const value = (at) => matrix.items[at][sort];
  const known = matrix.byName.filter((at) => value(at) !== null);
  known.sort((one, other) => (down ? value(other) - value(one) : value(one) - value(other)));
  return [...known, ...matrix.byName.filter((at) => value(at) === null)];
}

function head(key, sort, down) {
  const made = element("th", key === "item" ? "first" : "number");
  made.scope = "col";
  made.dataset.sort = key;
  const link = element("a", "", key);
  let order = "";
  if (key === sort) {
    made.setAttribute("aria-sort", down ? "descending" : "ascending");
    const arrow = element("span", "arrow", down ? "▼" : "▲");
    arrow.ariaHidden = "true";
    link.append(arrow);
    order = down ? "up" : "down";
    if ((order === "down") === DOWN[key]) order = "";
  }
  link.href = changed({ sort: key === "item" ? "" : key, order });
  made.append(link);
  return made;
}

function meanCell(own, digits) {
  const made = element("td", "number");
  if (own.mean === null) return element("td", "number", "–");
  made.append(element("b", "", figure(own.mean, digits)));
  if (own.low !== null) made.append(" ", element("small", "", `${figure(own.low, digits)}–${figure(own.high, digits)}`));
  made.append(" ", element("small", "", `n ${own.n.toLocaleString("en")}`));
  return made;
}

function scoreCell(matrix, item, own, cell) {
  const made = element("td", "cell none");
  if (!cell) {
    const empty = element("span", "", "·");
    empty.ariaLabel = "not run";
    made.append(empty);
    return made;
  }
  const [level, text, count, file] = cell;
  if (level !== null) made.className = `cell s${level}`;
  const link = element("a", "", text);
  const list = new URLSearchParams({ matrix: matrix.id, candidate: own.name, task: item.name });
  link.href = file || `conversations.html?${list}`;
  link.ariaLabel = `${item.name}, ${own.name}: ${text}${count > 1 ? `, ${count} conversations` : ""}`;
  if (count > 1) link.append(element("small", "", ` ×${count}`));
  made.append(link);
  return made;
}

function itemHead(matrix, item) {
  const made = element("th", "first");
  made.scope = "row";
  const name = element("a", "", item.name);
  name.href = `conversations.html?${new URLSearchParams({ matrix: matrix.id, task: item.name })}`;
  name.title = item.name;
  made.append(name);
  for (const mark of item.marks) made.append(" ", element("small", mark.startsWith("better") ? "tag low" : "tag", mark));
  return made;
}

function marks(matrix, show) {
  const made = element("nav", "item-kinds");
  made.ariaLabel = "Items to look at";
  const add = (text, to) => {
    const link = element("a", "", text);
    link.href = changed({ show: to });
    if (to && to === show) link.ariaCurrent = "true";
    made.append(link);
  };
  for (const [name, [mark, count]] of Object.entries(matrix.counts)) {
    const text = count === null ? `${mark}: too few models to tell` : `${count.toLocaleString("en")} ${mark}`;
    if (count || name === show) add(text, name);
    else made.append(element("span", "", text));
  }
  if (show) add("all items", "");
  return made;
}

function paging(pages, page, widths, across) {
  const made = element("nav", "paging");
  made.ariaLabel = "Pages";
  const add = (text, changes, rel) => {
    const link = element("a", "", text);
    if (rel) link.rel = rel;
    link.href = changed(changes);
    made.append(link);
  };
  if (page > 1) add("← previous items", { page: page - 1 }, "prev");
  if (pages > 1) made.append(element("span", "", `page ${page} of ${pages}`));
  if (page < pages) add("next items →", { page: page + 1 }, "next");
  if (across > 1) add("← previous candidates", { page, across: across - 1 });
  if (widths > 1) made.append(element("span", "", `candidates ${across} of ${widths}`));
  if (across < widths) add("next candidates →", { page, across: across + 1 });
  return made;
}

function number(name, most) {
  return Math.min(most, Math.max(1, Number(query.get(name)) || 1));
}

function show() {
  const all = window.vivaMatrices ?? [];
  const matrix = all.find((one) => one.id === (query.get("matrix") ?? form.elements.matrix.value)) ?? all[0];
  if (!matrix) return;
  form.elements.matrix.value = matrix.id;
  form.elements.candidates.value = query.get("candidates") ?? "";
  const sort = Object.hasOwn(DOWN, query.get("sort") ?? "") ? query.get("sort") : "item";
  const down = query.has("order") ? query.get("order") === "down" : DOWN[sort];
  let columns = matrix.candidates.map((own, at) => at);
  if (query.get("candidates") === "mean") {
    const mean = (at) => matrix.candidates[at].mean ?? -Infinity;
    columns.sort((one, other) => mean(other) - mean(one) || 0);
  }
  const mark = Object.hasOwn(matrix.counts, query.get("show") ?? "") ? query.get("show") : "";
  let shown = orderOf(matrix, sort, down);
  if (mark) shown = shown.filter((at) => matrix.items[at].marks.includes(matrix.counts[mark][0]));
  const pages = Math.max(1, Math.ceil(shown.length / ROWS));
  const widths = Math.max(1, Math.ceil(columns.length / ACROSS));
  const [page, across] = [number("page", pages), number("across", widths)];
  columns = columns.slice((across - 1) * ACROSS, across * ACROSS);
  const count = element("p", "count");
  const total = element("b", "", shown.length.toLocaleString("en"));
  total.id = "count";
  count.append(total, mark ? ` of ${matrix.items.length.toLocaleString("en")} items × ` : " items × ", element("b", "", matrix.candidates.length), ` candidates${matrix.scale ? ` · scores ${matrix.scale}` : ""}`);
  const legend = element("ul", "legend");
  legend.ariaLabel = "Colours";
  matrix.legend.forEach((ends, at) => {
    const line = element("li");
    line.append(element("span", `swatch s${at}`), ends);
    legend.append(line);
  });
  const table = element("table", "matrix");
  const top = element("tr");
  top.append(...["item", "mean", "spread"].map((key) => head(key, sort, down)));
  const means = element("tr", "means");
  const label = element("th", "first", "mean ");
  label.scope = "row";
  label.append(element("small", "", mark ? "of all items, 95% interval" : "95% interval"));
  means.append(label, element("td"), element("td"));
  for (const at of columns) {
    const own = matrix.candidates[at];
    const name = element("th", "candidate");
    name.scope = "col";
    const link = element("a", "", own.name);
    link.href = `conversations.html?${new URLSearchParams({ matrix: matrix.id, candidate: own.name })}`;
    link.title = own.name;
    name.append(link);
    top.append(name);
    means.append(meanCell(own, matrix.digits));
  }
  table.createTHead().append(top, means);
  const body = table.createTBody();
  for (const row of shown.slice((page - 1) * ROWS, page * ROWS)) {
    const item = matrix.items[row];
    const line = element("tr");
    line.append(itemHead(matrix, item), element("td", "number", figure(item.mean, matrix.digits)), element("td", "number", figure(item.spread, matrix.digits)));
    for (const at of columns) line.append(scoreCell(matrix, item, matrix.candidates[at], matrix.cells[row][at]));
    body.append(line);
  }
  const region = element("div", "scroll fit");
  region.id = "table";
  region.role = "region";
  region.ariaLabel = "Matrix of items and candidates";
  region.tabIndex = 0;
  region.append(table);
  place.replaceChildren(count, legend, marks(matrix, mark), ...matrix.notes.map((note) => element("p", "faint note", note)), region, paging(pages, page, widths, across));
}

form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("change", () => {
  location.search = changed({ matrix: form.elements.matrix.value, candidates: form.elements.candidates.value, across: 1 });
});
show();
