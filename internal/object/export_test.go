package object

// Buffered returns how many bytes of memory requests have now.
func (s *Store) Buffered() int64 { return s.memory.used.Load() }
