// What the page says of words, in Chromium: node check.mjs CHROMIUM BUILD WORD...
import { serve, withChromium } from "../../txport/runtimes/js/test/serve.mjs";

const [chromium, build, ...words] = process.argv.slice(2);
const server = await serve({ "": build });
await withChromium(chromium, async (browser) => {
  const page = await browser.newPage();
  page.on("pageerror", (error) => console.log(error.message));
  await page.goto(`${server.address}/#${words[0]}`);
  for (const word of words) {
    await page.fill("#word", word);
    await page.locator("#picture svg").waitFor();
    await page.waitForFunction((text) => document.querySelector("#picture").dataset.word === text, word);
    console.log((await page.locator("#sounds span").allTextContents()).join(" "));
  }
});
server.close();
