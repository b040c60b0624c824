"use strict";
// Take over the colours that were chosen in the viewer.
try {
  const theme = localStorage.getItem("viva-theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch { /* storage is disabled */ }
