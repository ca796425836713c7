"""What is asked of the operating system: files, documents, memory, the terminal. Knows no model."""
