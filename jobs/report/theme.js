"use strict";
// The button that turns the page light or dark; `changed` is told of it.
const theme = (changed) => {
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (root.style.colorScheme || (system.matches ? "dark" : "light")) === "dark";
  const label = () => { button.textContent = dark() ? "Light" : "Dark"; };
  button.hidden = false;
  button.addEventListener("click", () => {
    root.style.colorScheme = dark() ? "light" : "dark";
    label();
    changed();
  });
  system.addEventListener("change", () => { label(); changed(); });
  label();
};
