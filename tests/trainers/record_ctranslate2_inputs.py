"""What CTranslate2 was asked, when `record_ctranslate2` recorded what it finds."""

PROMPTS = [[0, 9, 5, 13, 7], [0, 8, 11, 6], [0, 21]]
SOURCES = [[9, 5, 13, 7, 20, 6], [8, 11], [25, 6, 17]]
