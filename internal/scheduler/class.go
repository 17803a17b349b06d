package scheduler

import (
	"maps"
	"slices"
	"strings"
)

// class is everything that rules can see of a node. Equal nodes share a class, so that
// rules are evaluated once for all of them. A class is immutable.
type class struct {
	ready    bool
	labels   map[string]string
	region   string
	zone     string
	taints   []Taint
	drivers  []string
	platform string
	gpuModel string

	// regionID and zoneID number the domains, see interner.
	regionID, zoneID int32
	key              string
	nodes            int
}

// classes numbers the classes of a view. Free numbers are reused; number 0 is for a slot
// without a node.
type classes struct {
	list  []*class
	byKey map[string]int32
	free  []int32
	names interner
}

func newClasses() classes {
	return classes{list: []*class{nil}, byKey: map[string]int32{}, names: interner{ids: map[string]int32{"": 0}}}
}

// enter returns the number of a node's class.
func (c *classes) enter(n *Node) int32 {
	key := classKey(n)
	id, known := c.byKey[key]
	if !known {
		id = c.put(&class{
			ready: n.Unschedulable == "", labels: maps.Clone(n.Labels), region: n.Region, zone: n.Zone,
			taints: slices.Clone(n.Taints), drivers: slices.Clone(n.Drivers), platform: n.Platform, gpuModel: n.GPUModel,
			regionID: c.names.id(n.Region), zoneID: c.names.id(n.Region + "\x00" + n.Zone), key: key,
		})
	}
	c.list[id].nodes++
	return id
}

func (c *classes) put(made *class) int32 {
	id := int32(len(c.list))
	if last := len(c.free) - 1; last >= 0 {
		id = c.free[last]
		c.free = c.free[:last]
		c.list[id] = made
	} else {
		c.list = append(c.list, made)
	}
	if made.zone == "" {
		made.zoneID = 0
	}
	c.byKey[made.key] = id
	return id
}

// leave removes a node from its class.
func (c *classes) leave(id int32) {
	if id == 0 {
		return
	}
	one := c.list[id]
	if one.nodes--; one.nodes == 0 {
		delete(c.byKey, one.key)
		c.list[id] = nil
		c.free = append(c.free, id)
	}
}

// domain is the number of a class's domain by a topology key, 0 if it has none.
func (c *classes) domain(of *class, key string) int32 {
	switch key {
	case KeyZone:
		return of.zoneID
	case KeyRegion:
		return of.regionID
	default:
		if value, has := of.labels[key]; has {
			return c.names.id(key + "=" + value)
		}
		return 0
	}
}

// interner numbers texts; the empty one is 0. There are few zones, regions and label values
// to spread over, so it forgets nothing.
type interner struct {
	ids map[string]int32
}

func (in *interner) id(text string) int32 {
	id, known := in.ids[text]
	if !known {
		id = int32(len(in.ids))
		in.ids[text] = id
	}
	return id
}

// classKey encodes what makes a class.
func classKey(n *Node) string {
	var b strings.Builder
	put := func(texts ...string) {
		for _, text := range texts {
			b.WriteString(text)
			b.WriteByte(0)
		}
		b.WriteByte(1)
	}
	if n.Unschedulable == "" {
		put("ready")
	}
	put(n.Region, n.Zone, n.Platform, n.GPUModel)
	put(slices.Sorted(slices.Values(n.Drivers))...)
	for _, t := range n.Taints {
		put(t.Key, t.Value, t.Effect)
	}
	b.WriteByte(2)
	for _, key := range slices.Sorted(maps.Keys(n.Labels)) {
		put(key, n.Labels[key])
	}
	return b.String()
}
