"""conftest.py: the command in a folder of its own, for each test.

SPDX-License-Identifier: Apache-2.0
"""

import pytest

from cli_command import Command


@pytest.fixture
def mxattn(tmp_path):
    return Command(tmp_path)
