#!/bin/sh
# test_header.sh: the public header compiles alone, as C11 and as C++17, pedantic.
# usage: test_header.sh CC INCLUDE
#
# SPDX-License-Identifier: Apache-2.0
set -eu
cc=$1 include=$2
flags="-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror -fsyntax-only -I$include"
use='#include <mxattn/mxattn.h>
int main(void) { mxattn_attention_problem p; mxattn_attention_problem_init(&p); return 0; }'
# shellcheck disable=SC2086
for standard in c11 c17; do
    printf '%s\n' "$use" | "$cc" -x c -std=$standard $flags -
done
if printf 'int x;\n' | "$cc" -x c++ -fsyntax-only - 2>/dev/null; then
    # shellcheck disable=SC2086
    printf '%s\n' "$use" | "$cc" -x c++ -std=c++17 $flags -
else
    echo "SKIP $cc compiles no C++ on this machine; C11 passed"
    exit 77
fi
