"""The HTML page of a bundle: `txport inspect --html`."""
