// `npm ci && npm run build` writes built/view.js and built/view.css: all that a page needs, with the licences of what
// is in them. The same sources give the same bytes.
import { build } from "esbuild";
import { createHash } from "node:crypto";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";

const result = await build({
  entryPoints: ["source/main.jsx"],
  bundle: true,
  minify: true,
  format: "iife",
  target: "es2020",
  charset: "utf8",
  jsxFactory: "h",
  jsxFragment: "Fragment",
  legalComments: "none",
  metafile: true,
  write: false,
});

// The package of every file in the bundle: node_modules/NAME or node_modules/@SCOPE/NAME.
const names = new Set();
for (const file of Object.keys(result.metafile.inputs)) {
  const found = file.match(/node_modules\/((?:@[^/]+\/)?[^/]+)\//);
  if (found) names.add(found[1]);
}
// What a package has bundled itself is of the packages that it depends on.
for (const name of names) {
  const { dependencies = {} } = JSON.parse(readFileSync(`node_modules/${name}/package.json`, "utf8"));
  for (const other of Object.keys(dependencies)) names.add(other);
}
const notices = [...names].sort().map((name) => {
  const { version, license } = JSON.parse(readFileSync(`node_modules/${name}/package.json`, "utf8"));
  const text = readFileSync(`node_modules/${name}/LICENSE`, "utf8").trim();
  return `${name} ${version} (${license})\n${text}`;
});
// Tells whether the sources have changed since: the digest of all of them, by name.
const digest = createHash("sha256");
for (const name of readdirSync("source").sort()) digest.update(`${name}\n`).update(readFileSync(`source/${name}`));
const comment = `/*\nBuilt from source/, sha256 ${digest.digest("hex")}, with code of:\n\n${notices.join("\n\n").replaceAll("*/", "* /")}\n*/\n`;
// The page embeds the file in a script element, which this would end.
const code = result.outputFiles[0].text.replaceAll("</script", "<\\/script");
writeFileSync("built/view.js", comment + code);

const styles = await build({ entryPoints: ["source/view.css"], bundle: true, minify: true, write: false });
writeFileSync("built/view.css", styles.outputFiles[0].text);
console.log(`built/view.js ${comment.length + code.length} bytes, built/view.css ${styles.outputFiles[0].text.length}`);
