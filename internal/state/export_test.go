package state

// FeedSize lets tests fall behind, LoadAtOnce lets them restore in parts.
const (
	FeedSize   = feedSize
	LoadAtOnce = loadAtOnce
)
