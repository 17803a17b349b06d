// Package nft keeps one nftables table as its owner describes it. The description has parts, and a change rewrites
// only the parts that changed, in one transaction. It detects that another program changed the table, and writes it again.
//
// It must not know what the rules are for.
package nft
