"use strict";
// Two pages of an export side by side: ?a=FILE&b=FILE. Only conversation pages are allowed.
const asked = new URLSearchParams(location.search);
for (const name of ["a", "b"]) {
  const file = asked.get(name) ?? "";
  if (!/^c\/[\w.-]+\/\d+\.html$/.test(file) || file.includes("..")) continue;
  const frame = document.createElement("iframe");
  frame.src = file;
  frame.title = file;
  document.getElementById("frames").append(frame);
}
