#!/usr/bin/env bash
# vulncheck.sh GOVULNCHECK... : fails if this repository calls code with a known vulnerability. GOVULNDB names another
# database than the public one, such as file:///srv/vulndb. If the database cannot be reached, it says so and succeeds.
set -uo pipefail
db=${GOVULNDB:-https://vuln.go.dev}
out=$(timeout 10m "$@" -db "$db" ./... 2>&1)
code=$?
case $code in
0) exit 0 ;;
3) echo "$out"; exit 1 ;; # what govulncheck ends with if it has found something
esac
if grep -qE 'creating client: |fetching vulnerabilities: ' <<<"$out" || [ $code = 124 ]; then
	echo "known vulnerabilities were NOT checked: the database at $db cannot be reached; set GOVULNDB to a copy of it"
	exit 0
fi
echo "$out"
exit 1
