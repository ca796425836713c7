/** What a visitor of the page does and sees, on a phone: JSON on stdout. */

import { serve, withChromium } from "../../txport/runtimes/js/test/serve.mjs";

const [chromium, build] = process.argv.slice(2);
const server = await serve({ "": build });
const phone = { viewport: { width: 320, height: 640 }, isMobile: true, hasTouch: true };
await withChromium(
  chromium,
  async (browser) => {
    const page = await browser.newPage();
    const faults = [];
    const asked = [];
    page.on("pageerror", (error) => faults.push(error.message));
    page.on("request", (request) => asked.push(request.url()));
    const shown = (word) =>
      page.waitForFunction((text) => document.querySelector("#picture").dataset.word === text, word);
    await page.goto(`${server.address}/#electroencephalograph`);
    await shown("electroencephalograph");
    const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    const notes = await page.textContent("#figures");
    await page.keyboard.press("Tab"); // from the top of the page: the box
    await page.fill("#word", "");
    await page.locator("#word").pressSequentially("colonel");
    await shown("colonel");
    const best = await page.textContent("#best");
    const sounds = await page.locator("#sounds span").allTextContents();
    const likely = await page.locator("#others .share").allTextContents();
    const title = () => page.textContent("#picture svg > title");
    const first = await title();
    await page.locator("#others button").nth(1).focus();
    await page.keyboard.press("Enter");
    const chosen = await page.locator('#others button[aria-pressed="true"]').allTextContents();
    const second = await title();
    await page.getByLabel("An English word").fill("naïve");
    await page.locator("#status.wrong").waitFor();
    const refusal = await page.textContent("#status");
    const isHidden = await page.locator("#details").isHidden();
    await page.getByRole("button", { name: "queue" }).click();
    await shown("queue");
    const unlabelled = await page.evaluate(() => {
      const named = (each) => each.labels?.length || each.textContent.trim() || each.getAttribute("aria-label");
      return [...document.querySelectorAll("input, button, select, progress")].filter((each) => !named(each)).length;
    });
    const away = asked.filter((url) => !url.startsWith(server.address) && !url.startsWith("data:"));
    const found = {
      faults,
      away,
      overflow,
      notes,
      best,
      sounds,
      likely,
      first,
      chosen,
      second,
      refusal,
      isHidden,
      unlabelled,
    };
    console.log(JSON.stringify({ ...found, hash: new URL(page.url()).hash }));
  },
  { options: phone },
);
server.close();
