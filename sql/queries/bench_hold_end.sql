-- Fails when the transaction is not there any more.
savepoint still_there;
rollback;
