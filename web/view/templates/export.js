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
  const words = (filter.get("q") ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  const low = filter.has("low") ? Number(filter.get("low")) : null;
  const high = filter.has("high") ? Number(filter.get("high")) : null;
  return all.filter((one) => {
    for (const name of ["candidate", "dataset", "run", "end", "error"]) {
      if (filter.has(name) && one[name] !== filter.get(name)) return false;
    }
    if (filter.has("state") && one.state !== STATES[filter.get("state")]) return false;
    const value = figure(one, filter);
    if (filter.has("aspect") && value === null) return false;
    if (low !== null && (value === null || value < low)) return false;
    if (high !== null && (value === null || value > high)) return false;
    const text = `${one.candidate} ${one.item} ${one.dataset} ${one.end} ${one.reason}`.toLowerCase();
    return words.every((word) => text.includes(word));
  });
}

const ORDERS = {
  low: (value) => (one) => value(one) ?? Infinity,
  high: (value) => (one) => -(value(one) ?? -Infinity),
  latest: () => (one) => -one.at,
  tokens: () => (one) => -one.tokens,
  slow: () => (one) => -one.seconds,
  retries: () => (one) => -one.retries,
};

function element(tag, name, text) {
  const made = document.createElement(tag);
  if (name) made.className = name;
  if (text !== undefined) made.textContent = text;
  return made;
}

function row(one, filter) {
  const made = element("li", `row ${["going-on", "finished", "failed"][one.state]}`);
  const link = element("a");
  link.href = one.file;
  const value = figure(one, filter);
  const cost = `${one.tokens.toLocaleString("en")} tokens · ${one.seconds.toFixed(1)} s`;
  link.append(
    element("span", "figure", value === null ? "–" : value.toFixed(1)),
    element("span", "name", one.candidate),
    element("span", "item", one.item),
    element("span", "end", one.state === 0 ? "in progress" : one.end),
    element("span", "cost", one.retries ? `${cost} · ${one.retries} retries` : cost),
  );
  if (one.reason) link.append(element("span", "reason", one.reason));
  made.append(link);
  return made;
}

function show() {
  const filter = chosen();
  const found = matching(filter);
  const order = ORDERS[filter.get("sort")]?.((one) => figure(one, filter));
  if (order) found.sort((one, other) => order(one) - order(other) || 0);
  const pages = Math.max(1, Math.ceil(found.length / SIZE));
  page = Math.min(page, pages);
  const count = element("p", "count");
  const number = element("b", "", found.length.toLocaleString("en"));
  number.id = "count";
  count.append(number, ` conversation${found.length === 1 ? "" : "s"}`);
  const rows = element("ol", "rows");
  for (const one of found.slice((page - 1) * SIZE, page * SIZE)) rows.append(row(one, filter));
  const paging = element("nav", "paging");
  for (const [rel, text, to] of [["prev", "← previous", page - 1], ["next", "next →", page + 1]]) {
    if (to < 1 || to > pages) continue;
    const link = element("a", "", text);
    const query = chosen();
    query.set("page", to);
    link.rel = rel;
    link.href = `?${query}`;
    paging.append(link);
  }
  list.replaceChildren(count, rows, paging);
  const query = chosen();
  if (page > 1) query.set("page", page);
  try { history.replaceState(null, "", `?${query}`); } catch { /* some browsers do not change file addresses */ }
}

take(new URLSearchParams(location.search));
form.addEventListener("submit", (event) => { event.preventDefault(); page = 1; show(); });
form.addEventListener("input", () => { page = 1; show(); });
show();
