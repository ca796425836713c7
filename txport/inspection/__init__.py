"""A bundle as a page that people look at: `txport inspect --html`."""
