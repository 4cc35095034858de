// Refusals of the last hour: who, how often, why, and what to do.
import { html } from "./vendor/htm-preact.js";
import { Name, clock, plural, safe } from "./widgets.js";
import { explained } from "./explain.js";

const places = ({ target, source, transport }) => [target && `at target ${safe(target)}`, source && `from ${source}`, `over ${transport}`]
  .filter(Boolean).join(", ");

function Login({ who, login }) {
  const { code, link, remedy } = login;
  // A remedy is an explanation on the command line: clients that cannot be explained have none.
  return html`<span class="dim">${places(login)}</span>
    <span class="more"><code title=${link}>${code}</code>${remedy && html` <a href=${explained("login", who, login.target, login.source)}
      aria-label=${`Explain why ${safe(who)} was refused`}>Explain</a>`}</span>`;
}

// Groups of refusals. With `isLong`, also the time, the command and the paragraph of the documentation.
export function Refused({ groups, most, isLong }) {
  return html`<ul class="rows tall refused">${groups.slice(0, most).map(({ key, who, words, login, count, time }) => html`<li key=${key}>
      <b>${count} ×</b> ${who ? html`<${Name} text=${who} />` : html`<span>a client without a name</span>`} <span>${safe(words)}</span>
      ${login && html`<${Login} who=${who} login=${login} />`}
      ${isLong && html`<span class="dim">last at ${clock(time, false)}</span>`}
      ${isLong && login && html`<span class="command">${login.remedy && html`<code>${safe(login.remedy)}</code>`}
        <span class="dim">${login.link}</span></span>`}</li>`)}
    ${groups.length > most && html`<li><a href="#/events">${plural(groups.length - most, "more reason")}</a></li>`}</ul>`;
}
