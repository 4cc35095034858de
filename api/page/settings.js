// All other resources: targets, portals, users, tokens, virtual machines. Their forms follow from the schema.
import { html } from "./vendor/htm-preact.js";
import { resources, schema } from "./client.js";
import { Description, Empty, Name, Table, safe } from "./widgets.js";
import { Create, Delete, Edit, quoted } from "./forms.js";

// The kinds with names, the most used first, with the keys that the list shows.
const KINDS = {
  target: ["Targets", ["iqn", "nqn", "portal-groups", "authentication", "users"]],
  portal: ["Portals", ["address", "protocol", "group"]],
  "portal-group": ["Portal groups", ["tag", "alua-state"]],
  user: ["Users", ["login"]],
  "tls-key": ["TLS keys", []],
  pool: ["Pools", ["folder", "space", "namespaces"]],
  vm: ["Virtual machines", ["target", "host", "socket"]],
  vhost: ["virtio devices", ["device", "target", "host", "socket"]],
  ublk: ["Disks of this machine", ["target", "host", "number"]],
  aoe: ["ATA over Ethernet", ["link", "shelf", "target"]],
  referral: ["Referrals", ["address"]],
  "api-listener": ["API listeners", ["address", "certificate"]],
  "api-token": ["API tokens", ["role"]],
};

const shown = (value) => {
  if (value === undefined || value === null || value === "" || (Array.isArray(value) && value.length === 0)) return html`<span class="dim">–</span>`;
  return safe(Array.isArray(value) ? value.join(", ") : typeof value === "boolean" ? (value ? "yes" : "no") : value);
};

export function Settings({ rest }) {
  const kind = Object.hasOwn(KINDS, rest[0]) ? rest[0] : "target";
  const [title, keys] = KINDS[kind];
  const types = schema();
  const rows = resources(kind);
  const columns = [
    { key: "name", title: "Name", cell: (one) => html`<${Name} text=${one.name} />`, value: (one) => one.name },
    ...keys.map((key) => ({ key, title: key, cell: (one) => shown(one.keys[key]), value: (one) => String(one.keys[key] ?? "") })),
    { key: "action", title: "", cell: (one) => html`<span class="row-actions"><${Edit} resource=${one} />
      <${Delete} path=${`/v1/${kind}/${encodeURIComponent(one.name)}`} what=${kind} name=${one.name} command=${`lunar ${kind} delete ${quoted(one.name)}`} /></span>` },
  ];
  return html`<nav class="tabs" aria-label="Kinds"><ul>${Object.entries(KINDS).map(([name, [title]]) => html`<li>
      <a href=${`#/settings/${name}`} aria-current=${name === kind ? "page" : undefined}>${title}</a></li>`)}</ul></nav>
    <div class="tools"><h2>${title}</h2><span class="spring"></span><${Create} key=${kind} kind=${kind} label=${`Create ${kind}`} /></div>
    <p class="dim"><${Description} text=${types?.[kind]?.description} /></p>
    ${rows.length === 0 ? html`<${Empty}>There are none.<//>`
      : html`<${Table} key=${kind} label=${title} columns=${columns} rows=${rows} rowKey=${(one) => one.name} />`}`;
}
