// Runs the script of the live page on the data of standard input, and prints the content of each element by its id.
//
//     node tests/helpers/show_live.js autobatch/serving/live.html < live.json
"use strict";
const fs = require("fs");

const [, body, script] = fs.readFileSync(process.argv[2], "utf8").match(/^(.*)<script>(.*)<\/script>/s);
function makeElement() {
  return {
    textContent: "", innerHTML: "", children: [], style: { setProperty() {} }, setAttribute() {},
    append(...added) { this.children.push(...added); },
    replaceChildren(...added) { this.children = added; },
  };
}
function contentOf(one) {
  return one.textContent + one.innerHTML + one.children.map(contentOf).join(" ");
}
const elements = new Map([...body.matchAll(/ id="([^"]*)"/g)].map(([, id]) => [id, makeElement()]));
globalThis.document = { createElement: makeElement, getElementById: id => elements.get(id) ?? null };
globalThis.fetch = async () => ({ json: async () => JSON.parse(fs.readFileSync(0, "utf8")) });
globalThis.setTimeout = () => console.log(
  JSON.stringify(Object.fromEntries([...elements].map(([id, one]) => [id, contentOf(one)])))
);
new Function(script)();
