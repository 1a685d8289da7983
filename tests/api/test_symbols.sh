#!/bin/sh
# test_symbols.sh: the shared library exports what the header declares and nothing else; the static
# one defines only our prefixes; neither needs more than libc and libm; the command uses none of the
# library's internals.
# usage: test_symbols.sh NM SHARED STATIC HEADER [TOOLS_STATIC]
#
# SPDX-License-Identifier: Apache-2.0
set -eu
nm=$1 shared=$2 static=$3 header=$4 tools=${5:-}
temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT

# Declarations run over lines: join, then take the name before the first parenthesis.
tr '\n' ' ' <"$header" | sed 's/MXATTN_API /\n&/g' |
    sed -n 's/^MXATTN_API [^(]*[ *]\(mxattn_[a-z0-9_]*\)(.*/\1/p' | sort -u >"$temporary/declared"
"$nm" -D --defined-only "$shared" | awk '{print $3}' | sed 's/@.*//' |
    grep -vE '^(__|_init$|_fini$|_edata$|_end$)' | sort -u >"$temporary/exported"
[ -s "$temporary/declared" ] || { echo "no declaration found in $header"; exit 1; }
diff -u "$temporary/declared" "$temporary/exported" ||
    { echo "declared (-) and exported (+) differ"; exit 1; }

"$nm" -g --defined-only "$static" | awk 'NF == 3 {print $3}' |
    grep -vE '^(mxattn_|mxa_|__|\.|DW\.)' >"$temporary/foreign" || true
if [ -s "$temporary/foreign" ]; then
    echo "global symbols of $static without our prefix:"
    cat "$temporary/foreign"
    exit 1
fi
if command -v readelf >/dev/null && readelf -d "$shared" | grep NEEDED |
    grep -vE 'lib(c|m|pthread|asan|ubsan|tsan|gcc_s|dl)\.so|ld-linux'; then
    echo "$shared needs more than libc and libm"
    exit 1
fi
if command -v readelf >/dev/null && readelf -d "$shared" | grep -q STATIC_TLS; then
    echo "$shared needs static TLS: a program that opens it late may have no room for it"
    exit 1
fi
[ -n "$tools" ] || exit 0
"$nm" -g --defined-only "$static" | awk 'NF == 3 && $3 ~ /^mxa_/ {print $3}' | sort -u >"$temporary/internal"
"$nm" -g "$tools" | awk 'NF > 1 {print $NF}' | sort -u >"$temporary/wanted" # or defines again
if [ -n "$(comm -12 "$temporary/internal" "$temporary/wanted")" ]; then
    echo "the command uses, or defines again, internals of the library:"
    comm -12 "$temporary/internal" "$temporary/wanted"
    exit 1
fi
