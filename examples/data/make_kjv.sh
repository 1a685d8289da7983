#!/bin/sh
# make_kjv.sh: writes kjv.txt from Debian's bible-kjv packages.
#
# One verse a line, chapters separated by an empty line, references removed. The file is kept in
# the tree; this only shows where it came from (apt-get install bible-kjv).
#
# SPDX-License-Identifier: Apache-2.0
set -eu
out=$(dirname "$0")/kjv.txt
for book in Genesis Exodus 1Samuel 2Samuel Matthew Mark Luke John; do
    bible -f "${book}1:1-${book}999:999" </dev/null
done | awk '{
    split($1, reference, ":")
    if (reference[1] != chapter && NR > 1) print ""
    chapter = reference[1]
    sub(/^[^ ]* /, "")
    print
}' >"$out"
