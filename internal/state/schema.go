package state

import (
	"fmt"

	"github.com/hashicorp/go-memdb"
)

// newDB makes empty tables.
func newDB() *memdb.MemDB {
	schema := &memdb.DBSchema{Tables: make(map[string]*memdb.TableSchema, len(tables))}
	for _, t := range tables {
		indexes := map[string]*memdb.IndexSchema{
			indexUID: {Name: indexUID, Unique: true, Indexer: indexer{key: uidKey}},
		}
		if t.named {
			indexes[indexName] = &memdb.IndexSchema{Name: indexName, Unique: true, Indexer: indexer{key: nameKey}}
		}
		for name, key := range t.indexes {
			indexes[name] = &memdb.IndexSchema{Name: name, Indexer: indexer{key: key}}
		}
		schema.Tables[string(t.kind)] = &memdb.TableSchema{Name: string(t.kind), Indexes: indexes}
	}
	db, err := memdb.NewMemDB(schema)
	must(err)
	// Only a primary database keeps track of what to notify, which costs an allocation for each touched node of a
	// tree: the feed does that job.
	return db.Snapshot()
}

// indexer makes the keys of one index. Lookups come with finished keys.
type indexer struct {
	key keyFunc
}

func (x indexer) FromObject(raw any) (bool, []byte, error) {
	return true, x.key(raw.(Object)), nil
}

func (x indexer) FromArgs(args ...any) ([]byte, error) {
	return args[0].([]byte), nil
}

func (x indexer) PrefixFromArgs(args ...any) ([]byte, error) { return x.FromArgs(args...) }

// must guards calls of memdb, which fail only where code and schema do not fit together: no input leads there.
func must(err error) {
	if err != nil {
		panic(fmt.Errorf("state: the tables do not fit their schema: %w", err))
	}
}
