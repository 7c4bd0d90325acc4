// The guided tour of the demo: one small popover beside each element that it explains. It starts at the first visit of
// the queue, goes on over page loads, and can be started again from Help. Its place is remembered in the browser.
import { say } from "./app.js";

const STORE = "tour", GAP = 10; // pixels between the popover and what it explains
const NEW = "table.list tbody tr:has(.chip.new) a[href^='/notes/']";
const panel = () => document.getElementById("panel");

// find: selectors, of which the first that is visible counts. area: what belongs to it and should stay in view, too.
// act: what the button clicks. done: whether it has been done.
const STEPS = [
  { page: "queue", find: [".tabs"], title: "The work queue", text: "Encounters wait here for their codes: to do, on hold, in second review, done." },
  { page: "queue", find: [NEW], title: "Open an encounter", text: "`j` and `k` move through the list, `Enter` opens an encounter.", act: NEW, label: "Open this one" },
  { page: "note", find: ["#note .at", "#note .on", ".card.now"], title: "Evidence", text: "Highlighted words support the selected code. `j` and `k` select another code, `n` shows the next place." },
  { page: "note", find: [".claim > .claim-head"], area: ".claim", title: "Proposed claim", text: "The codes in billing order, made by the coding guidelines, each with its reason if you open the list. `y` accepts them; you can still change every one.", act: "#panel [data-act=claim]", label: "Accept the claim", done: () => !document.querySelector("#panel [data-act=claim]") },
  { page: "note", find: ["#checks-title"], area: "#checks-title + .findings", title: "Checks", text: "What would be refused or looks wrong: codes that exclude each other, order, side, age, present on admission. Errors stop you from finishing." },
  { page: "note", find: [".groups summary"], title: "DRG", text: "The payment group of these codes. It changes with every decision." },
  { page: "note", find: ["#panel [data-act=finish]"], area: "#panel .bar", title: "Finish", text: "`f` finishes the encounter. Its history keeps every decision. `s` asks for a second review instead.", act: "#panel [data-act=finish]", label: "Finish", done: () => ["done", "second"].includes(panel()?.dataset.status) },
  { page: "note", find: ["#panel #next", "#next"], title: "Next encounter", text: "`g` opens the next encounter of the queue.", act: "#next", label: "Next encounter" },
  { page: "", find: ["#help-button"], title: "That is the way through an encounter", text: "`?` lists all keys. Help also starts this tour again.", label: "Close" },
];

const sheet = new CSSStyleSheet(); // the policy of the server allows no inline style
document.adoptedStyleSheets.push(sheet);
const here = document.getElementById("note") ? "note" : document.querySelector(".tabs") ? "queue" : "";
let at = -1, box = null, before = null; // index of the step, its popover, what had the focus

const isShown = (element) => element?.checkVisibility?.() ?? Boolean(element);
const find = (step) => step.find.map((selector) => document.querySelector(selector)).find(isShown) ?? null;
const last = STEPS.length - 1;

/** The first step from `index` on that this page can show; -1 if there is none. */
function from(index) {
  const step = STEPS.findIndex((item, number) => number >= index && (item.page === here || !item.page) && find(item));
  return step === last && index < last && here !== "note" ? -1 : step; // the end comes after an encounter only
}

function show(index) {
  at = index;
  localStorage.setItem(STORE, String(at));
  const step = STEPS[at];
  box ??= build();
  box.querySelector("h2").textContent = step.title;
  box.querySelector(".tour-count").textContent = `${at + 1} of ${STEPS.length}`;
  box.querySelector("p").replaceChildren(...step.text.split("`").map((part, i) => (i % 2 ? key(part) : part)));
  box.querySelector(".primary").textContent = step.label ?? "Next";
  place(true);
  box.querySelector(".primary").focus({ preventScroll: true });
}

function key(name) {
  const made = document.createElement("kbd");
  made.textContent = name;
  return made;
}

function build() {
  const made = document.createElement("div");
  made.id = "tour";
  made.setAttribute("role", "dialog");
  made.setAttribute("aria-labelledby", "tour-title");
  made.setAttribute("aria-describedby", "tour-text");
  made.innerHTML = '<div class="tour-head"><h2 id="tour-title"></h2><span class="tour-count muted"></span></div><p id="tour-text"></p>'
    + '<div class="tour-acts"><button type="button" class="primary"></button><button type="button" class="tour-end">End tour <kbd>Esc</kbd></button></div>';
  made.querySelector(".primary").addEventListener("click", next);
  made.querySelector(".tour-end").addEventListener("click", () => end());
  document.body.append(made);
  return made;
}

/** Does what the step explains, or goes on if there is nothing to do. */
function next() {
  const step = STEPS[at], button = step.act && !step.done?.() ? document.querySelector(step.act) : null;
  if (!button) return goOn();
  if (!step.done) localStorage.setItem(STORE, String(at + 1)); // the page is left
  button.click();
}

function goOn() {
  const index = from(at + 1);
  if (index < 0) end();
  else show(index);
}

function end() {
  localStorage.setItem(STORE, "done");
  at = -1;
  document.querySelector(".tour-target")?.classList.remove("tour-target");
  box?.remove();
  box = null;
  (isShown(before) && before !== document.body ? before : document.getElementById("main")).focus({ preventScroll: true });
  say("The tour has ended; Help starts it again.");
}

/** Puts the popover beside its element: where it fits, covers nothing of it and little of what belongs to it. */
function place(scroll = false) {
  const step = STEPS[at], target = step && find(step);
  if (!box || !target) return;
  for (const old of document.querySelectorAll(".tour-target")) if (old !== target) old.classList.remove("tour-target");
  target.classList.add("tour-target");
  let best = null;
  for (const block of scroll ? ["nearest", "start", "end", "center"] : [null]) {
    if (block) target.scrollIntoView({ block, inline: "nearest" });
    const spot = freeSpot(target.getBoundingClientRect(), step.area && document.querySelector(step.area)?.getBoundingClientRect());
    if (!best || spot.cost < best.cost) best = { ...spot, block };
    if (!spot.covers) break;
  }
  if (best.block && best.covers) target.scrollIntoView({ block: best.block, inline: "nearest" });
  sheet.replaceSync(`#tour { left: ${Math.round(best.x)}px; top: ${Math.round(best.y)}px; }`);
}

/** The best position beside a rectangle: x, y, whether it covers some of it, and the cost of what it covers. */
function freeSpot(around, area = around) {
  const { width, height } = box.getBoundingClientRect();
  const right = document.documentElement.clientWidth - width - GAP, bottom = innerHeight - height - GAP;
  const spots = [
    [area.left - width - GAP, around.top], [area.right + GAP, around.top],
    [around.left, Math.max(around.bottom, area.bottom) + GAP], [around.left, around.bottom + GAP], [around.left, around.top - height - GAP],
  ].map(([left, top]) => {
    const x = Math.max(GAP, Math.min(left, right)), y = Math.max(GAP, Math.min(top, bottom));
    const shared = (rect) => Math.max(0, Math.min(x + width, rect.right) - Math.max(x, rect.left)) * Math.max(0, Math.min(y + height, rect.bottom) - Math.max(y, rect.top));
    return { x, y, covers: shared(around) > 0, cost: 1000 * shared(around) + shared(area) };
  });
  return spots.reduce((best, spot) => (spot.cost < best.cost ? spot : best));
}

function start(index) {
  before = document.activeElement;
  const first = from(index);
  if (first >= 0) show(first);
}

document.addEventListener("keydown", (event) => {
  if (at < 0 || document.querySelector("dialog[open]") || document.body.classList.contains("marking")) return;
  if (event.target.closest?.("input, textarea, select")) return;
  if (event.key === "Escape") { event.preventDefault(); end(); }
  else if (event.key === "Enter" && !event.target.closest?.("a, button, summary")) { event.preventDefault(); next(); }
});
addEventListener("resize", () => place());
addEventListener("scroll", () => place(), { capture: true, passive: true });
new MutationObserver(() => {
  if (at < 0) return;
  if (STEPS[at].done?.()) goOn();
  else if (!document.querySelector(".tour-target")) place();
}).observe(document.getElementById("main"), { childList: true, subtree: true });

const again = document.getElementById("tour-button");
again.hidden = false;
again.addEventListener("click", () => {
  document.getElementById("help").close();
  localStorage.setItem(STORE, "0");
  if (here === "queue") start(0);
  else location.assign("/");
});

const stored = localStorage.getItem(STORE) ?? (here === "queue" ? "0" : "done");
const isCoded = !document.querySelector("#panel[hx-get$='/coded']"); // the page loads again when it is
if (stored !== "done" && isCoded) start(here === "queue" && Number(stored) > 1 && Number(stored) < last ? 1 : Number(stored));
