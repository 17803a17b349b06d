package state

// FeedSize lets tests fall behind.
const FeedSize = feedSize
