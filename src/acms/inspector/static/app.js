// What pages do besides links and forms: keys, copies, and the number beside the version slider.
"use strict";

function step(by) {
  const stops = [...document.querySelectorAll("main summary, main .renders a, main table a")].filter(
    (one) => one.offsetParent !== null,
  );
  if (!stops.length) return;
  const at = stops.indexOf(document.activeElement);
  const next = stops[Math.min(stops.length - 1, Math.max(0, at + by))];
  next.focus();
  next.scrollIntoView({ block: "nearest" });
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.matches("input, select, textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const tabs = document.querySelectorAll(".tabs a");
  if (event.key === "/") document.querySelector("input[type=search]")?.focus();
  else if (event.key === "j") step(1);
  else if (event.key === "k") step(-1);
  else if (tabs.length && /^[1-8]$/.test(event.key)) tabs[event.key - 1]?.click();
  else return;
  event.preventDefault();
});

async function copyText(link) {
  const status = document.getElementById("copied");
  try {
    const reply = await fetch(link.href);
    await navigator.clipboard.writeText(await reply.text());
    status.textContent = link.textContent.replace("Copy", "Copied");
  } catch {
    location.href = link.href; // without a clipboard the text is shown
  }
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-copy]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  copyText(link);
});

document.addEventListener("input", (event) => {
  if (event.target.matches(".travel input[type=range]"))
    event.target.form.querySelector("output").textContent = `v${event.target.value}`;
});
