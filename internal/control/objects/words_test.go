package objects

import (
	"strings"
	"testing"
)

func TestOnePieceOfAnObjectIsSingular(t *testing.T) {
	for n, want := range map[int64]string{1: "1 piece of an object lacks", 2: "2 pieces of objects lack"} {
		if got := pieces(n, "lacks", "lack"); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
	for want, s := range map[string]survey{
		"1 piece of an object still has too few copies; see why":                                                                {lacking: 1},
		"3 pieces of objects have no copy that can be reached; see why":                                                         {unreachable: 3},
		"2 pieces of objects still have too few copies, and 1 piece of an object has no copy that can be reached; see why with": {lacking: 2, unreachable: 1},
	} {
		if got := unfinished(s); !strings.HasPrefix(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
