package placement_test

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/cloudless/cloudless/internal/object/placement"
)

const gib = 1 << 30

func node(uid, zone string, free int64) placement.Node {
	return placement.Node{UID: uid, Zone: zone, Class: "ssd", Capacity: 100 * gib, Free: free}
}

func chunk(number int) placement.Chunk {
	c := placement.Chunk{Size: 4 << 20}
	binary.LittleEndian.PutUint64(c.Hash[:], uint64(number)*0x9e3779b97f4a7c15)
	return c
}

func TestCopiesAreInDifferentZones(t *testing.T) {
	nodes := []placement.Node{
		node("a1", "a", 90*gib), node("a2", "a", 90*gib), node("a3", "a", 90*gib), node("b1", "b", gib), node("c1", "c", gib),
	}
	for i := range 100 {
		order := placement.Order(nodes, chunk(i), 3)
		zones := []byte{order[0][0], order[1][0], order[2][0]}
		slices.Sort(zones)
		if string(zones) != "abc" {
			t.Fatalf("the first three nodes of chunk %d are %v, want one of each zone", i, order)
		}
	}
}

func TestZonesOfExistingCopiesComeLast(t *testing.T) {
	nodes := []placement.Node{node("a1", "a", 90*gib), node("b1", "b", gib), node("c1", "c", gib)}
	c := chunk(1)
	c.Zones = []string{"a", "b"}
	if order := placement.Order(nodes, c, 3); order[0] != "c1" {
		t.Errorf("the third copy goes to %s, want the zone that has none", order[0])
	}
}

func TestNodesGetChunksInProportionToTheirFreeSpace(t *testing.T) {
	slow := node("slow", "", 40*gib)
	slow.Class = "hdd"
	nodes := []placement.Node{node("small", "", 10*gib), node("large", "", 30*gib), slow}
	count := map[string]int{}
	for i := range 10_000 {
		count[placement.Order(nodes, chunk(i), 1)[0]]++
	}
	for uid, want := range map[string]int{"small": 2000, "large": 6000, "slow": 2000} {
		if got := count[uid]; got < want*9/10 || got > want*11/10 {
			t.Errorf("%s has %d of 10000 chunks, want about %d", uid, got, want)
		}
	}
}

func TestNodesWithoutRoomGetNothing(t *testing.T) {
	full := node("full", "", 64<<20)
	if order := placement.Order([]placement.Node{full, node("free", "", gib)}, chunk(1), 2); !slices.Equal(order, []string{"free"}) {
		t.Errorf("placed on %v, want only the node with room", order)
	}
}

func TestLocalNodeComesFirstUntilItIsFullerThanTheOthers(t *testing.T) {
	local := node("local", "", 50*gib)
	local.Local = true
	others := []placement.Node{node("a", "", 55*gib), node("b", "", 55*gib)}
	for i := range 50 {
		if order := placement.Order(append(others, local), chunk(i), 3); order[0] != "local" {
			t.Fatalf("chunk %d is first on %s, want the local node", i, order[0])
		}
	}
	local.Free = 10 * gib
	elsewhere := 0
	for i := range 50 {
		if order := placement.Order(append(others, local), chunk(i), 3); order[0] != "local" {
			elsewhere++
		}
	}
	if elsewhere < 25 {
		t.Errorf("%d of 50 chunks are first on another node, want most: the local disk is nearly full", elsewhere)
	}
}

func TestDoubtfulNodesAreOnlyUsedInsteadOfNone(t *testing.T) {
	doubtful := node("doubtful", "b", 90*gib)
	doubtful.Doubtful = true
	nodes := []placement.Node{doubtful, node("a1", "a", gib), node("a2", "a", gib)}
	for i := range 50 {
		if order := placement.Order(nodes, chunk(i), 3); order[2] != "doubtful" {
			t.Fatalf("chunk %d goes to %v, want the doubtful node last", i, order)
		}
	}
}

// A node that leaves must not move the chunks of the others.
func TestANodeThatLeavesMovesOnlyItsOwnChunks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var nodes []placement.Node
		for i := range rapid.IntRange(2, 9).Draw(t, "nodes") {
			nodes = append(nodes, node(fmt.Sprint("n", i), "", rapid.Int64Range(1, 90).Draw(t, "free")*gib))
		}
		c := chunk(rapid.Int().Draw(t, "chunk"))
		before := placement.Order(nodes, c, len(nodes))
		gone := rapid.IntRange(0, len(nodes)-1).Draw(t, "gone")
		uid := nodes[gone].UID
		after := placement.Order(slices.Delete(nodes, gone, gone+1), c, len(before))
		want := slices.DeleteFunc(before, func(n string) bool { return n == uid })
		if !slices.Equal(after, want) {
			t.Fatalf("without %s the order is %v, want %v", uid, after, want)
		}
	})
}

func BenchmarkOrderOfAThousandNodes(b *testing.B) {
	var nodes []placement.Node
	for i := range 1000 {
		nodes = append(nodes, node(fmt.Sprint("node-", i), fmt.Sprint(i%5), 50*gib))
	}
	for i := 0; b.Loop(); i++ {
		placement.Order(nodes, chunk(i), 6)
	}
}
