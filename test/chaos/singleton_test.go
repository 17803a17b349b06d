package chaos

import (
	"strings"
	"testing"
	"time"
)

func lived(process, node string, epoch uint64, begin, end int) life {
	return life{process, node, epoch, time.Duration(begin) * time.Second, time.Duration(end) * time.Second}
}

// The checker finds processes that ran at the same time and epochs that did not grow, and accepts restarts and moves.
func TestDuplicateSingletonsAreFound(t *testing.T) {
	first := lived("a", "n1", 1, 0, 10)
	for what, c := range map[string]struct {
		lives  []life
		breach string
	}{
		"one process":                               {[]life{first}, ""},
		"a restart on the node":                     {[]life{first, lived("b", "n1", 1, 11, 20)}, ""},
		"a move":                                    {[]life{first, lived("b", "n2", 2, 27, 40)}, ""},
		"a move in the other order":                 {[]life{lived("b", "n2", 2, 27, 40), first}, ""},
		"a move without a pause":                    {[]life{first, lived("b", "n2", 2, 10, 40)}, ""},
		"a move too early":                          {[]life{first, lived("b", "n2", 2, 9, 40)}, "ran at the same time for 1s"},
		"a restart too early":                       {[]life{first, lived("b", "n1", 1, 5, 6)}, "ran at the same time for 1s"},
		"one that has run all the time":             {[]life{lived("a", "n1", 1, 0, 40), lived("b", "n2", 2, 27, 30), lived("c", "n3", 3, 50, 60)}, "ran at the same time for 3s"},
		"a move with the same epoch":                {[]life{first, lived("b", "n2", 1, 27, 40)}, "did not grow"},
		"an older one that begins again afterwards": {[]life{first, lived("b", "n2", 2, 27, 40), lived("c", "n1", 1, 50, 60)}, "did not grow"},
	} {
		complaints := strings.Join(duplicates(c.lives), "\n")
		if (c.breach == "") != (complaints == "") || !strings.Contains(complaints, c.breach) {
			t.Errorf("%s: the complaints are %q, expected %q", what, complaints, c.breach)
		}
	}
}
