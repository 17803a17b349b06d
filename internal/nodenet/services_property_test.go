package nodenet_test

import (
	"fmt"
	"net/netip"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cloudless/cloudless/internal/nodenet"
)

// A sequence of updates leaves the same rules as writing the last state into an empty table.
func TestUpdatesEqualWholeTable(t *testing.T) {
	l := newServiceLab(t)
	l.attach("a", "a", tcp(8080, insidePort))
	for seed := range 10 {
		for _, step := range rapid.SliceOfN(rapid.Custom(drawStep), 1, 8).Example(seed) {
			if step.whole {
				l.must(l.network.SetServices(step.changed))
			} else {
				l.must(l.network.UpdateServices(step.changed, step.removed))
			}
		}
		updated := l.listing()
		nft(t, "delete table inet cloudless_testtest")
		eventually(t, func() error {
			if written := l.listing(); written != updated {
				return fmt.Errorf("seed %d\nafter updates:\n%s\nwritten anew:\n%s", seed, updated, written)
			}
			return nil
		})
	}
}

// serviceStep is one change of the services.
type serviceStep struct {
	whole   bool
	changed []nodenet.Service
	removed []string
}

func drawStep(t *rapid.T) serviceStep {
	step := serviceStep{whole: rapid.IntRange(0, 5).Draw(t, "whole") == 0}
	for i := range 4 {
		id := fmt.Sprintf("s%d.shop", i)
		switch rapid.IntRange(0, 3).Draw(t, "change") {
		case 0:
			step.removed = append(step.removed, id)
		case 1, 2:
			step.changed = append(step.changed, drawService(t, id, byte(i)))
		}
	}
	return step
}

func drawService(t *rapid.T, id string, at byte) nodenet.Service {
	s := nodenet.Service{
		ID: id, Group: id, Owner: id, Exported: rapid.Bool().Draw(t, "exported"),
		Affinity: time.Duration(rapid.IntRange(0, 2).Draw(t, "affinity")) * time.Minute,
	}
	if rapid.Bool().Draw(t, "virtual") {
		s.Addresses = []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, at}), netip.AddrFrom16([16]byte{0xfd, 0, 0, 0x64, 0xff, 0xff, 15: at})}
	}
	for port := range uint16(rapid.IntRange(0, 3).Draw(t, "ports")) {
		p := nodenet.ServicePort{Protocol: rapid.SampledFrom([]string{"tcp", "udp"}).Draw(t, "protocol"), Port: 80 + port, Target: 8000}
		if rapid.Bool().Draw(t, "published") {
			p.Publish = 8080 + uint16(at)*10 + port
		}
		s.Ports = append(s.Ports, p)
	}
	for i := range rapid.IntRange(0, 4).Draw(t, "backends") {
		s.Backends = append(s.Backends, nodenet.Backend{
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 64, 4, byte(i + 2)}), netip.AddrFrom16([16]byte{0xfd, 0, 0, 0x64, 15: byte(i + 2)})},
			Weight:    uint32(rapid.IntRange(0, 3).Draw(t, "weight")), Distance: rapid.IntRange(0, 2).Draw(t, "distance"),
		})
	}
	return s
}

var elementList = regexp.MustCompile(`elements = \{([^}]*)\}`)

// listing is our table, without the order of chains, sets and elements.
func (l *lab) listing() string {
	out, err := exec.Command("nft", "--stateless", "list", "table", "inet", "cloudless_testtest").CombinedOutput()
	if err != nil {
		return err.Error() + string(out)
	}
	_, body, _ := strings.Cut(string(out), "{\n")
	text := elementList.ReplaceAllStringFunc(body, func(list string) string {
		elements := strings.FieldsFunc(elementList.FindStringSubmatch(list)[1], func(r rune) bool { return r == ',' })
		for i, e := range elements {
			elements[i] = strings.TrimSpace(e)
		}
		slices.Sort(elements)
		return "elements = [" + strings.Join(elements, ", ") + "]"
	})
	blocks := strings.Split(text, "\n\t}\n")
	for i, b := range blocks {
		if strings.Contains(b, "flags dynamic") {
			b, _, _ = strings.Cut(b, "elements") // packets add them
		}
		blocks[i] = strings.TrimSpace(b)
	}
	slices.Sort(blocks)
	return strings.Join(blocks, "\n")
}
