package nft

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// sharedElements are what Shared sets have now. They are lost if nobody remembers them while the table is replaced.
func (t *Table) sharedElements() ([]Element, error) {
	if len(t.shared) == 0 {
		return nil, nil
	}
	c, err := Connect()
	if err != nil {
		return nil, err
	}
	var list []Element
	for name := range t.shared {
		elements, err := allElements(c, &nftables.Set{Table: tableOf(t.name, false), Name: name})
		if err != nil {
			return nil, fmt.Errorf("read the elements of set %s: %w", name, err)
		}
		for key, left := range elements {
			list = append(list, Element{Set: name, Key: key, Timeout: left})
		}
	}
	return list, nil
}

// mostReads limits how often a set is read.
const mostReads = 20

// allElements are the elements of a set and how long they have left. A set that grows is moved to a larger table by the
// kernel in the background, and who reads it meanwhile misses some: it is read until that finds nothing new.
func allElements(c *nftables.Conn, set *nftables.Set) (map[string]time.Duration, error) {
	all := map[string]time.Duration{}
	for range mostReads {
		before := len(all)
		elements, err := c.GetSetElements(set)
		if IsMissing(err) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		for _, e := range elements {
			if e.Expires > 0 {
				all[string(e.Key)] = e.Expires
			}
		}
		if len(all) == before {
			break
		}
	}
	return all, nil
}

// IsMissing reports whether a set or a table does not exist. The library passes on only the text of the kernel's error.
func IsMissing(err error) bool {
	return err != nil && (errors.Is(err, unix.ENOENT) || strings.HasSuffix(err.Error(), unix.ENOENT.Error()))
}

// Added is an element for a Shared set. Present ones were added before, and live on as if they were new.
type Added struct {
	Set, Key string
	Timeout  time.Duration
	Present  bool
}

// Adder adds elements to the Shared sets of a table that another program owns. It is safe for concurrent use: elements
// that are added at the same time share a transaction.
type Adder struct {
	table string

	mu   sync.Mutex
	next *addition

	writing sync.Mutex
	conn    *nftables.Conn
}

// addition is a transaction of an Adder.
type addition struct {
	elements []Added
	written  bool
	err      error
}

// NewAdder is for the table of that name.
func NewAdder(table string) *Adder { return &Adder{table: table} }

// Add returns when the kernel has the elements.
func (a *Adder) Add(elements []Added) error {
	a.mu.Lock()
	if a.next == nil {
		a.next = &addition{}
	}
	mine := a.next
	mine.elements = append(mine.elements, elements...)
	a.mu.Unlock()
	a.writing.Lock()
	defer a.writing.Unlock()
	if mine.written {
		return mine.err
	}
	a.mu.Lock()
	a.next = nil
	a.mu.Unlock()
	mine.written, mine.err = true, a.write(mine.elements)
	return mine.err
}

// write adds elements. Before Linux 6.12, an element that exists keeps its timeout, so present ones are removed first. If
// one of them has expired meanwhile, all are added again without that.
func (a *Adder) write(elements []Added) error {
	var add, remove []Element
	seen := map[elementKey]bool{}
	for _, e := range slices.Backward(elements) {
		if seen[elementKey{e.Set, e.Key}] {
			continue
		}
		seen[elementKey{e.Set, e.Key}] = true
		add = append(add, Element{Set: e.Set, Key: e.Key, Timeout: max(e.Timeout, time.Second)})
		if e.Present {
			remove = append(remove, Element{Set: e.Set, Key: e.Key})
		}
	}
	err := a.transact(remove, add)
	if err != nil && len(remove) > 0 {
		err = a.transact(nil, add)
	}
	return err
}

func (a *Adder) transact(remove, add []Element) (err error) {
	if a.conn == nil {
		if a.conn, err = Connect(nftables.AsLasting()); err != nil {
			return err
		}
	}
	defer func() {
		if err != nil {
			_ = a.conn.CloseLasting() // answers may be left
			a.conn = nil
		}
	}()
	b := &batch{conn: a.conn, name: a.table}
	if err := b.each(remove, a.conn.SetDeleteElements); err != nil {
		return err
	}
	if err := b.each(add, a.conn.SetAddElements); err != nil {
		return err
	}
	if err := a.conn.Flush(); err != nil {
		return fmt.Errorf("add elements to table %s: %w", a.table, err)
	}
	return nil
}

// Close ends the connection to the kernel.
func (a *Adder) Close() {
	a.writing.Lock()
	defer a.writing.Unlock()
	if a.conn != nil {
		_ = a.conn.CloseLasting()
		a.conn = nil
	}
}
