"""The site: hooks of MkDocs, generated pages, links and names; `make docs` builds it."""
