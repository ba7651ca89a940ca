// Query the search of a built site: node ask_search.js SITE < queries. It prints a line of JSON for each query: the
// addresses of the sections found, grouped by page, best first.

const fs = require("fs");
const path = require("path");
const vm = require("vm");

const [site] = process.argv.slice(2);
const folder = path.join(site, "assets/javascripts/workers");
const [script] = fs.readdirSync(folder).filter((name) => /^search\..*\.js$/.test(name));
const listeners = [];
const answers = [];
const worker = {
  console,
  Promise,
  addEventListener: (_, listener) => listeners.push(listener),
  postMessage: (message) => answers.push(message),
};
worker.self = worker;
vm.runInNewContext(fs.readFileSync(path.join(folder, script), "utf8"), worker);

const tell = async (type, data) => {
  for (const listener of listeners) listener({ data: { type, data } });
  while (!answers.length) await new Promise((resolve) => setImmediate(resolve));
  return answers.shift().data;
};

(async () => {
  const index = JSON.parse(fs.readFileSync(path.join(site, "search/search_index.json"), "utf8"));
  await tell(0, { ...index, options: { suggest: false } });
  for (const query of fs.readFileSync(0, "utf8").trim().split("\n")) {
    const { items } = await tell(2, query);
    console.log(JSON.stringify(items.map((page) => page.map(({ location }) => location))));
  }
})();
