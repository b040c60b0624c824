"use strict";
// The list of conversations in an export: filters, sorts and pages asset/data.js.
const SIZE = 50;
const all = window.vivaConversations ?? [];
const form = document.getElementById("filters");
const list = document.getElementById("list");
const STATES = { open: 0, finished: 1, failed: 2 };
let page = 1;

function take(query) {
  for (const field of form.elements) {
    if (field.name && query.has(field.name)) field.value = query.get(field.name);
  }
  const words = document.querySelector(".find input");
  words.value = form.elements.q.value;
  page = Math.max(1, Number(query.get("page")) || 1);
}

function chosen() {
  const filter = new URLSearchParams();
  for (const field of form.elements) if (field.name && field.value !== "") filter.set(field.name, field.value);
  return filter;
}

function figure(one, filter) {
  const aspect = filter.get("aspect");
  return aspect ? one.aspects[aspect] ?? null : one.score;
}

function matching(filter) {
  const words = (filter.get("q") ?? "").toLowerCase().replaceAll('"', " ").split(/\s+/).filter(Boolean);
  const [task, matrix] = [filter.get("task"), filter.get("matrix")];
  const low = filter.has("low") ? Number(filter.get("low")) : null;
  const high = filter.has("high") ? Number(filter.get("high")) : null;
  return all.filter((one) => {
    for (const name of ["candidate", "scenario", "dataset", "set", "run", "end", "error"]) {
      if (filter.has(name) && one[name] !== filter.get(name)) return false;
    }
    if ((task !== null && one.task !== task) || (matrix !== null && one.matrix !== matrix)) return false;
    if (filter.has("state") && one.state !== STATES[filter.get("state")]) return false;
    const value = figure(one, filter);
    if (filter.has("aspect") && value === null) return false;
    if (low !== null && (value === null || value < low)) return false;
    if (high !== null && (value === null || value > high)) return false;
    const text = `${one.candidate} ${one.item} ${one.dataset} ${one.end} ${one.reason}`.toLowerCase();
    return words.every((word) => text.includes(word));
  });
}

// Sort keys as in the viewer; a value of null is unknown, and comes last in both directions.
const ASPECT = "aspect:";
const VALUES = {
  item: (one) => one.item,
  candidate: (one) => one.candidate,
  dataset: (one) => one.dataset || null,
  run: (one) => one.run,
  score: (one) => one.score,
  end: (one) => one.end || null,
  rounds: (one) => one.rounds,
  tokens: (one) => one.tokens,
  seconds: (one) => one.seconds,
  retries: (one) => one.retries,
  time: (one) => one.at || null,
};
const TEXTS = new Set(["item", "candidate", "dataset", "run", "end"]);
const EARLIER = { low: ["score", "up"], high: ["score", "down"], latest: ["time", "down"], slow: ["seconds", ""] };
const titles = new Map();
for (const box of document.querySelectorAll("form.columns [type=checkbox]")) titles.set(box.value, box.parentElement.textContent.trim());
titles.set("item", "item");
const keys = [...document.querySelectorAll("th[data-column]")].map((head) => head.dataset.column);

function valueOf(key) {
  const name = key.slice(ASPECT.length);
  if (key.startsWith(ASPECT)) return (one) => Object.hasOwn(one.aspects, name) ? one.aspects[name] : null;
  return Object.hasOwn(VALUES, key) ? VALUES[key] : undefined;
}

function sorting(query) {
  let [sort, order] = [query.get("sort") ?? "", query.get("order") ?? ""];
  if (Object.hasOwn(EARLIER, sort)) {
    [sort, order] = EARLIER[sort];
    if (sort === "score" && query.get("aspect")) sort = ASPECT + query.get("aspect");
  }
  if (!valueOf(sort)) return null;
  return { key: sort, down: order ? order === "down" : !TEXTS.has(sort) };
}

// Scores of different kinds cannot be compared, so that each kind is sorted by itself.
function isApart(found, by) {
  return (by?.key === "score" || by?.key.startsWith(ASPECT)) && new Set(found.map((one) => one.kind)).size > 1;
}

function sorted(found, by) {
  if (!by) return found;
  const value = valueOf(by.key);
  const sign = by.down ? -1 : 1;
  const known = found.filter((one) => value(one) !== null);
  const rest = found.filter((one) => value(one) === null);
  const apart = isApart(found, by);
  known.sort((one, other) => {
    const [a, b] = apart && one.kind !== other.kind ? [one.kind, other.kind] : [value(one), value(other)];
    const turn = apart && one.kind !== other.kind ? 1 : sign;
    return a < b ? -turn : a > b ? turn : 0;
  });
  return [...known, ...rest];
}

function kindRow(title, width) {
  const made = element("tr", "kind");
  const head = element("th");
  head.scope = "rowgroup";
  head.colSpan = width;
  head.append(element("span", "", title));
  made.append(head);
  return made;
}

function element(tag, name, text) {
  const made = document.createElement(tag);
  if (name) made.className = name;
  if (text !== undefined) made.textContent = text;
  return made;
}

function points(value, high) {
  return value === null ? "–" : value.toFixed(high !== null && high <= 10 ? 2 : 1);
}

function cell(one, key) {
  const made = element(key === "item" ? "th" : "td", TEXTS.has(key) ? "" : "number");
  made.dataset.column = key;
  if (key === "item") {
    made.scope = "row";
    made.className = "first";
    const link = element("a", "item", one.item);
    link.href = one.file;
    link.title = one.item;
    const box = element("div");
    box.append(link);
    made.append(box);
  } else if (key === "end") {
    made.className = "end";
    made.append(element("span", "", one.state === 0 ? "in progress" : one.end));
  } else if (key === "tokens") made.textContent = one.tokens.toLocaleString("en");
  else if (key === "seconds") made.textContent = one.seconds < 0.0995 ? `${(1000 * one.seconds).toFixed(0)} ms` : `${one.seconds.toFixed(1)} s`;
  else if (key === "time") made.textContent = one.when || "–";
  else if (TEXTS.has(key)) {
    made.className = "name";
    made.append(element("span", "", one[key]));
  } else if (key === "rounds" || key === "retries") made.textContent = one[key] ?? "–";
  else {
    made.classList.add("figure");
    made.textContent = points(valueOf(key)(one), one.high);
    if (key === "score" && one.score !== null && one.scale && severalScales) made.append(" ", element("small", "", one.scale));
  }
  return made;
}

const severalScales = new Set(all.map((one) => one.scale)).size > 1;

function rows(one, shown) {
  const made = element("tr", `row ${["going-on", "finished", "failed"][one.state]}`);
  made.append(...shown.map((key) => cell(one, key)));
  if (!one.reason) return [made];
  made.classList.add("has-more");
  const more = element("tr", "more failed");
  const whole = element("td");
  whole.colSpan = shown.length;
  const box = element("div");
  box.append(element("span", "reason", one.reason));
  whole.append(box);
  more.append(whole);
  return [made, more];
}

function changed(changes) {
  const next = new URLSearchParams(query);
  next.delete("page");
  for (const [name, value] of Object.entries(changes)) {
    if (value === "") next.delete(name);
    else next.set(name, value);
  }
  return `?${next}`;
}

function head(key, by) {
  const made = element("th", [key === "item" ? "first" : "", TEXTS.has(key) ? "" : "number"].join(" ").trim());
  made.scope = "col";
  made.dataset.column = key;
  const link = element("a", "", titles.get(key));
  const scale = !severalScales && key === "score" ? all[0]?.scale : "";
  if (scale) link.append(" ", element("small", "", scale));
  let order = "";
  if (by?.key === key) {
    made.setAttribute("aria-sort", by.down ? "descending" : "ascending");
    const arrow = element("span", "arrow", by.down ? "▼" : "▲");
    arrow.ariaHidden = "true";
    link.append(arrow);
    order = by.down ? "up" : "down";
    if ((order === "down") === !TEXTS.has(key)) order = "";
  }
  link.href = changed({ sort: key, order });
  made.append(link);
  return made;
}

let query = new URLSearchParams(location.search);

function show() {
  const filter = chosen();
  for (const name of ["sort", "order", "matrix", "task"]) if (query.has(name)) filter.set(name, query.get(name));
  for (const name of query.getAll("columns")) filter.append("columns", name);
  query = filter;
  const found = matching(filter);
  const by = sorting(filter);
  const pages = Math.max(1, Math.ceil(found.length / SIZE));
  page = Math.min(page, pages);
  const count = element("p", "count");
  const number = element("b", "", found.length.toLocaleString("en"));
  number.id = "count";
  count.append(number, ` conversation${found.length === 1 ? "" : "s"}`);
  const none = all.some((one) => one.state === STATES.failed) || filter.get("state") !== "failed";
  if (!found.length && all.length) count.append(none ? " · No conversation matches." : " · No conversation matches: none has failed.");
  for (const [name, value] of filter) {
    if (name === "matrix") {
      const own = [...document.querySelectorAll("#matrices option")].find((one) => one.value === value);
      const link = element("a", "", own?.textContent ?? "unknown");
      if (own) link.href = `matrix.html?matrix=${own.value}`;
      count.append(" · matrix ", link);
    } else if (!["sort", "order", "columns"].includes(name)) {
      const figureName = filter.get("aspect") ?? "score";
      const label = { q: "text", low: `${figureName} from`, high: `${figureName} up to` }[name] ?? name;
      count.append(` · ${label} `, element("b", "", value));
    }
  }
  const isFiltered = [...filter.keys()].some((name) => !["sort", "order", "columns"].includes(name));
  if (isFiltered) {
    const link = element("a", "", "all");
    link.href = "conversations.html";
    count.append(" · ", link);
  }
  document.getElementById("range-label").textContent = filter.get("aspect") ?? "score";
  const notes = [];
  if (filter.has("q")) notes.push(element("p", "faint note", "In exported pages the search covers names, ends and reasons, not the texts of conversations: a phrase is found by its words."));
  const columns = filter.getAll("columns");
  const wanted = new Set(columns.length ? columns : keys);
  if (by) wanted.add(by.key);
  if (!columns.length && filter.has("aspect")) wanted.add(ASPECT + filter.get("aspect"));
  const shown = ["item", ...[...titles.keys()].filter((key) => key !== "item" && wanted.has(key))];
  const table = element("table", "list");
  const top = element("tr");
  top.append(...shown.map((key) => head(key, by)));
  table.createTHead().append(top);
  const body = table.createTBody();
  const apart = isApart(found, by);
  let before = null;
  for (const one of sorted(found, by).slice((page - 1) * SIZE, page * SIZE)) {
    const kind = apart && valueOf(by.key)(one) === null ? "without this figure" : one.kind;
    if (apart && kind !== before) body.append(kindRow(kind, shown.length));
    before = kind;
    body.append(...rows(one, shown));
  }
  const region = element("div", "scroll");
  region.id = "table";
  region.role = "region";
  region.ariaLabel = "Conversations";
  region.tabIndex = 0;
  region.append(table);
  const paging = element("nav", "paging");
  paging.ariaLabel = "Pages";
  for (const [rel, text, to] of [["prev", "← previous", page - 1], ["next", "next →", page + 1]]) {
    if (rel === "next" && pages > 1) paging.append(element("span", "", `page ${page.toLocaleString("en")} of ${pages.toLocaleString("en")}`));
    if (to < 1 || to > pages) continue;
    const link = element("a", "", text);
    link.rel = rel;
    link.href = changed({ page: to });
    paging.append(link);
  }
  list.replaceChildren(count, ...notes, region, paging);
  const address = new URLSearchParams(query);
  if (page > 1) address.set("page", page);
  try { history.replaceState(null, "", `?${address}`); } catch { /* some browsers do not change file addresses */ }
}

take(query);
const picker = document.querySelector("form.columns");
if (query.has("columns")) for (const box of picker.querySelectorAll("[type=checkbox]")) box.checked = query.getAll("columns").includes(box.value);
picker.addEventListener("submit", (event) => {
  event.preventDefault();
  query.delete("columns");
  for (const value of new FormData(picker).getAll("columns")) query.append("columns", value);
  show();
});
form.addEventListener("submit", (event) => { event.preventDefault(); page = 1; show(); });
form.addEventListener("input", () => { page = 1; show(); });
show();
