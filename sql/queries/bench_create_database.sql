-- The statements that make and drop a throw-away database.
select format('create database %I template template0', $1::text),
       format('drop database if exists %I with (force)', $1::text)
