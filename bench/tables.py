"""tables.py: tables in Markdown, printed or put between their marks in a document.

SPDX-License-Identifier: Apache-2.0
"""

import re


def table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def deliver(made, marks, path):
    """Prints the texts of `made` (name -> text); or, where there is a path, replaces what stands there between
    <!-- MARKS NAME --> and <!-- end -->, and says which names have no such marks."""
    if not path:
        for name, text in made.items():
            print(f"## {name}\n\n{text}\n")
        return
    with open(path, encoding="utf-8") as file:
        document = file.read()
    for name, text in made.items():
        document, count = re.subn(rf"(<!-- {marks} {name} -->\n).*?(<!-- end -->)",
                                  lambda match, text=text: f"{match[1]}{text}\n{match[2]}", document, flags=re.S)
        print(f"{name}: {'replaced' if count else 'no mark in ' + path}")
    with open(path, "w", encoding="utf-8") as file:
        file.write(document)
