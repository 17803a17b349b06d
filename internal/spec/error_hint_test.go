package spec

import "testing"

func TestHintNamesTheNamespace(t *testing.T) {
	for namespace, want := range map[string]string{"": "cloudless ps", DefaultNamespace: "cloudless ps", "team": "cloudless ps -n team"} {
		if got := Hint(namespace, "cloudless ps"); got != want {
			t.Errorf("in namespace %q the hint is %q, want %q", namespace, got, want)
		}
	}
}
