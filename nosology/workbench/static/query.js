// The page on which a physician answers a query.
import { dropDraft, keepDraft, restoreDraft, send } from "./drafts.js";

const form = document.querySelector("form[data-draft]");
if (form) {
  keepDraft(form);
  restoreDraft(form);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (await send(form) === null) return;
    dropDraft(form);
    location.assign("/queries");
  });
}
document.querySelector(".text .highlighted")?.scrollIntoView({ block: "center" });
