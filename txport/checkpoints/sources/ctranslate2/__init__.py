"""Folders of CTranslate2: `model.bin` with weights and attributes, `config.json`, vocabularies."""
