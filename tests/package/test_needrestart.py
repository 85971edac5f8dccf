# SPDX-License-Identifier: LGPL-2.1-or-later
"""debian/needrestart.conf, read as needrestart reads it, after its own configuration (3.6: the line is there word for word)."""

import pytest

import helpers


CONF = helpers.ROOT / "debian/needrestart.conf"
SCRIPT = r"""
our %nrconf = (blacklist_mappings => [qr(^/(SYSV00000000( \(deleted\))?|drm(\s|$)|dev/)), qr#^(/var)?/tmp/#, qr#^(/var)?/run/#]);
if ($ARGV[1]) { eval do { local (@ARGV, $/) = $ARGV[1]; <> }; die $@ if $@; }
print((grep { $ARGV[0] =~ /$_/ } @{$nrconf{blacklist_mappings}}) ? "ignored" : "looked at");
"""


@pytest.mark.parametrize("path, plainly, with_ours", [
    ("/run/hugeld/0x1-0x2/postgres (deleted)", "ignored", "looked at"),
    ("/run/hugeld/0x1-0x2/postgres", "ignored", "looked at"),
    ("/run/other/file (deleted)", "ignored", "ignored"),
    ("/var/run/file (deleted)", "ignored", "ignored"),
    ("/run/hugeldx (deleted)", "ignored", "ignored"),
    ("/tmp/file (deleted)", "ignored", "ignored"),
    ("/usr/lib/libc.so.6 (deleted)", "looked at", "looked at"),
])
def test_mapping(path, plainly, with_ours):
    for conf, wanted in (("", plainly), (CONF, with_ours)):
        result = helpers.run(["perl", "-e", SCRIPT, path, conf])
        assert (result.stdout, result.stderr) == (wanted, ""), path
