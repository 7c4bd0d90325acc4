// The search for codes: choices narrow a procedure step by step, Backspace goes back.
import { ACTS, awaitHits, select } from "./note.js";

const find = document.getElementById("find"), system = document.getElementById("find-system");
const trail = []; // queries before each choice

/** Searches for words or a pattern, and moves to the results once they are there. */
function search(query) {
  find.value = query;
  find.dispatchEvent(new Event("input", { bubbles: true }));
  awaitHits();
}

ACTS.narrow = (_, from) => {
  trail.push(find.value);
  search(from.dataset.next);
};

document.addEventListener("keydown", (event) => {
  if (!event.target.matches?.("#hits .hit")) return;
  if (event.key === "Backspace" && trail.length) {
    event.preventDefault();
    search(trail.pop());
  } else if (event.key === "Escape") {
    event.preventDefault();
    select(document.querySelector(".card.now")?.dataset.key ?? null, { jump: false });
  }
});
document.addEventListener("input", (event) => { if (event.isTrusted && event.target === find) trail.length = 0; });

// The code system, like what was typed, survives a reload.
if (system) {
  const kept = `system ${document.getElementById("note").dataset.note}`;
  system.value = sessionStorage.getItem(kept) ?? system.value;
  addEventListener("change", (event) => { if (event.target === system) sessionStorage.setItem(kept, system.value); });
}
