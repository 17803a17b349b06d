package chaos

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// step is a fault that begins at a time and is undone after another.
type step struct {
	kind   string
	at     time.Duration
	length time.Duration
	// dice decides what the kind leaves open, such as which of the followers.
	dice uint64
}

func (s step) String() string {
	return fmt.Sprintf("%6.1fs  %-14s for %.1fs", s.at.Seconds(), s.kind, s.length.Seconds())
}

// stranding is the kind of fault that takes the servers away from the node of the singleton, for so much longer than
// others that its lease ends and it is replaced. The others go on meanwhile, and it comes early.
const (
	stranding     = "strand-singleton"
	outlastsLease = 18 * time.Second
)

// schedule is the order of faults of a seed: always the same one, as long as the kinds stay
// the same. Every kind comes once before any is repeated. A third of them begin before the
// previous one ends.
func schedule(seed uint64, kinds []string, length time.Duration) (steps []step) {
	random := rand.New(rand.NewPCG(seed, 0))
	between := func(least, most time.Duration) time.Duration {
		return least + time.Duration(random.Int64N(int64(most-least))).Round(time.Millisecond)
	}
	var deck []string
	for at := 500 * time.Millisecond; at < length; {
		if len(deck) == 0 {
			deck = slices.Clone(kinds)
			random.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
			if i, early := slices.Index(deck, stranding), random.IntN(4); i > early {
				deck[i], deck[early] = deck[early], deck[i]
			}
		}
		s := step{kind: deck[0], at: at, length: between(1500*time.Millisecond, 5*time.Second), dice: random.Uint64()}
		deck = deck[1:]
		if s.kind == stranding {
			s.length += outlastsLease
			steps = append(steps, s)
			at += between(100*time.Millisecond, 3*time.Second)
			continue
		}
		steps = append(steps, s)
		if random.IntN(3) == 0 {
			at += between(100*time.Millisecond, s.length)
		} else {
			at += s.length + between(500*time.Millisecond, 3*time.Second)
		}
	}
	return steps
}

func describe(steps []step) string {
	var b strings.Builder
	for _, s := range steps {
		fmt.Fprintln(&b, s)
	}
	return b.String()
}
