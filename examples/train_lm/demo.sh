#!/bin/sh
# demo.sh BUILD [KINDS]: trains once for each kind (float32,mxfp8), then draws the loss curves.
#
# Files go to build/demo. The picture needs matplotlib, which scripts/venv puts into build/venv
# where the network allows; everything else needs only the program in BUILD.
#
# SPDX-License-Identifier: Apache-2.0
set -eu
cd "$(dirname "$0")/../.."
build=${1:-build/release}
kinds=${2:-float32,mxfp8}
out=build/demo

picture=yes
if ! build/venv/bin/python -c 'import matplotlib' 2>/dev/null; then
    echo "preparing build/venv with matplotlib, for the picture"
    scripts/venv matplotlib || picture=no
fi
"$build/train_lm" --attention "$kinds" --out $out
if [ $picture = yes ]; then
    build/venv/bin/python examples/train_lm/plot_loss.py $out
else
    echo "no picture: build/venv has no matplotlib; the curves are in $out/loss_*.csv"
fi
