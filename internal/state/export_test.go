package state

// FeedSize tells tests how many changes make a subscriber lag.
const FeedSize = feedSize
