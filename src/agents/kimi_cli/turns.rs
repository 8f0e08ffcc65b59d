//! Where a turn begins: the one walk over a wire's events, giving the turns and the operations that they
//! made on the context.
